"""OCRA: object-centric recurrent attention."""
