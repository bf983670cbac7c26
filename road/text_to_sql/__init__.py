"""Text to SQL, learnt from the prompt: a synthetic language of questions about tables, and its queries executed."""
