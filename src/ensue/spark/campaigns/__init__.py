"""Campaigns: many independent cases on Spark, and swarms as one of them."""
