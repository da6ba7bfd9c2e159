"""How far back a recurrent network's loss reaches, at first and once it has learned to remember."""
