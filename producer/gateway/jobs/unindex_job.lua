-- Remove a job from the list of its tenant, unless it has a record: then another request has submitted it.
-- KEYS 1 jobs of a tenant (sorted set)   2 the record of the job (hash), if this lane has it
-- ARGV 1 id
set_aside_unless('zset', KEYS[1])
if not KEYS[2] or redis.call('EXISTS', KEYS[2]) == 0 then redis.call('ZREM', KEYS[1], ARGV[1]) end
