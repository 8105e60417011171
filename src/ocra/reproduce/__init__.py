"""The paper's tables, made by the program: plan runs, carry them out, record them, write tables and plots."""
