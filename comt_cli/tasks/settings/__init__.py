"""The classes of settings. They take pydantic, and are imported where a recipe or a run is read."""
