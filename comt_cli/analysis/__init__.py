"""What a trained network does with a text: the values of its gates, and what its layers make of the residual stream."""
