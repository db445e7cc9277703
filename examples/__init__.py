"""Example drivers and provisioners; no other package imports them."""
