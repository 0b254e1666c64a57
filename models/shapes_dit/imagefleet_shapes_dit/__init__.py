"""A small checkpoint of Z-Image lies in this folder. Workers find it as the model `shapes-dit`."""
