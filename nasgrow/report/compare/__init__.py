"""The report that compares several studies: which losses are comparable, which study leads, and costs."""
