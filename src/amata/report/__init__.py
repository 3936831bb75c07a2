"""Figures, tables and HTML pages, drawn from plain results."""
