CREATE TABLE orders (
    id bigint PRIMARY KEY, status text NOT NULL, amount numeric(10,2), at timestamptz, note text
);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE heartbeat (id int PRIMARY KEY, at timestamptz);
CREATE ROLE debezium LOGIN REPLICATION PASSWORD 'change-me';
GRANT SELECT ON orders TO debezium;
GRANT SELECT, INSERT, UPDATE ON heartbeat TO debezium;
CREATE PUBLICATION icefold FOR TABLE orders, heartbeat;
INSERT INTO orders VALUES
    (1, 'new', 10.50, '2024-02-29 12:00:00.123456Z', repeat('long ', 2000)),
    (2, 'new', 20.00, '2024-03-31 01:30:00Z', NULL),
    (3, 'new', NULL, NULL, 'short');
