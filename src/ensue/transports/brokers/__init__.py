"""Carriers on existing brokers: NATS, Redis, MQTT and AMQP."""
