"""How large a fleet must be: costs that were measured, a discrete-event simulation of it, and the answers."""
