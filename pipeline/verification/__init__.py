"""The gates that every result passes before it is ranked or shipped."""
