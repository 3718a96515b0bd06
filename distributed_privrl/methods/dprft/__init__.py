"""DP-RFT: a language model tuned by private votes from a corpus that it never reads."""
