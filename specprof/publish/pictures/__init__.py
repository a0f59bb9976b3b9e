"""One module per kind of picture; `style` is what they share."""
