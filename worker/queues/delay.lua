-- Put a claimed message aside until it is due, uncounted.
-- KEYS 1 this worker's claims   2 what is put aside (sorted set: list \0 message by due time)
-- ARGV 1 tag   2 when it is due, Unix seconds
-- Returns 0 if it is due already, and stays claimed; 1 if it is not in this worker's hands any more.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 1 end
local clock = redis.call('TIME')
if tonumber(ARGV[2]) <= clock[1] + clock[2] / 1e6 then return 0 end
redis.call('ZADD', KEYS[2], ARGV[2], entry)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
