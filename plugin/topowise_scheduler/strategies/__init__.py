"""How good a placement is: raw scores from 0 to `engine.score.RAW_MAX`."""
