"""The demo model's texts: everything it is trained and tested on is written by the generators in this folder."""
