SELECT status, count(*) AS orders, sum(amount) AS amount FROM shop_orders GROUP BY status ORDER BY status
