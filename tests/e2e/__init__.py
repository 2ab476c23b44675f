"""Whole round trips with systems that others wrote."""
