"""Messages whose schema is in a schema registry: Avro and JSON Schema, as Confluent frames them."""
