-- Move a claimed message that this worker cannot handle to the delayed messages. It returns after as long as it
-- has waited already, at least MIN_PAUSE_S and at most MAX_PAUSE_S. This counts no delivery: no worker died.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)
--      2 delayed messages (sorted set: list \0 message by due time)
--      3 when this message was first postponed (string, Unix seconds)   4 record of its job (hash; may be missing)
-- ARGV 1 tag   2 seconds after which it is not postponed any more
--      3 SHA-1 of the request that the message was stored with ('': not known)
-- Returns 0 if that time is over, or if the record is that of another job, which leaves it claimed; 1 if this worker
-- does not hold it now.
local MIN_PAUSE_S, MAX_PAUSE_S = 5, 60
local MIN_KEPT_S = 86400  -- a message may wait long in its queue before a worker claims it again
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 1 end
if is_superseded(KEYS[4], ARGV[3]) then return 0 end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local first = tonumber(redis.call('GET', KEYS[3]) or now)
local waited = math.max(0, now - first)
if waited >= tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[3])
  return 0
end
local kept_s = math.ceil(math.max(MIN_KEPT_S, 2 * ARGV[2]))
redis.call('SET', KEYS[3], string.format('%.6f', first), 'EX', kept_s)
local pause = math.min(math.max(MIN_PAUSE_S, waited), MAX_PAUSE_S, first + ARGV[2] - now)
local due = string.format('%.6f', now + pause)
redis.call('ZADD', KEYS[2], due, entry)
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.pcall('HGET', KEYS[4], 'state') == 'queued' then
  redis.call('HSET', KEYS[4], 'retry_at', due)
  publish_change(KEYS[4], 'queued')
end
return 1
