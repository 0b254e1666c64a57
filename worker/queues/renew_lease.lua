-- Acquire or renew the lease of a worker. A lease that was reclaimed cannot be renewed: other workers
-- have its messages by then.
-- KEYS 1 leases (sorted set: worker -> expiry, Unix seconds)   2 lengths of leases (hash: worker -> seconds)
-- ARGV 1 worker   2 seconds until expiry   3 '1' to acquire, '0' to renew
-- Returns 1, or 0 if there is no lease to renew.
if ARGV[3] ~= '1' and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], redis.call('TIME')[1] + ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
