"""The paper's tables, made by the program: runs, their records, and everything that is written from records."""
