"""Search-space rules, named by class path in YAML; each is a plug-in like any user's."""
