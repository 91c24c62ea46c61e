"""Helpers of the browser tests: processes, browser, page object, sample data."""
