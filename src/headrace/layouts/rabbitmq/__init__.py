"""RabbitMQ's classic queue storage: queue index (journal and segments) and the message store that queues share."""
