"""Language models tuned on scores of their texts: prose, prompts, gate, training, measures."""
