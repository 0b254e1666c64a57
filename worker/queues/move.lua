-- Move a claimed message that this worker does not serve to another list. This counts no delivery: no worker died.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)   2 target list; the message goes behind all others there
-- ARGV 1 tag
-- Returns 1, or 0 if this worker does not hold the message now.
local _, message = split_entry(redis.call('HGET', KEYS[1], ARGV[1]) or '')
if not message then return 0 end
push_message('LPUSH', KEYS[2], message)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
