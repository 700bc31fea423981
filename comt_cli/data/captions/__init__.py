"""Images with several captions each: rendered scenes, and MSCOCO as features of its regions. Never imports torch."""
