"""Delivery of callbacks: from the outbox in Redis to the receivers, signed, retried for days."""
