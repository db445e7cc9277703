"""Example drivers and provisioners; nothing in the distribution imports them."""
