"""The pure core: messages, receivers, outcomes, schedules. No I/O, no clock, no client library."""
