SELECT status, amount / sum(amount) OVER () AS share FROM orders_by_status ORDER BY status
