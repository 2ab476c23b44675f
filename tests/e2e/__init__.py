"""Tests of whole round trips with systems of other projects."""
