"""How each order is deployed in a simulated world, and how its run is judged."""
