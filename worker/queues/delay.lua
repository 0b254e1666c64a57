-- Move a claimed message to the delayed messages until it is due.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)
--      2 delayed messages (sorted set: list \0 message by due time)
-- ARGV 1 tag   2 due time, Unix seconds
-- Returns 0 if the message is due already, which leaves it claimed; 1 if this worker does not hold it now.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 1 end
local clock = redis.call('TIME')
if tonumber(ARGV[2]) <= clock[1] + clock[2] / 1e6 then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], entry)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
