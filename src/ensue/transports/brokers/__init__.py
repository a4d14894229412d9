"""Frames over an existing broker: NATS, Redis, MQTT or AMQP."""
