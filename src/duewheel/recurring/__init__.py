"""Recurring schedules: cron expressions and intervals whose firings are ordinary timers."""
