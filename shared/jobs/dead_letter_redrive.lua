-- Send a dead letter's message through the fleet once more, with fresh counts.
-- KEYS 1 dead letters (sorted set)   2 their texts (hash)   3 record of its job
--      4 deliveries so far (hash: sha1 of message -> count)   5 queue list it came from
-- ARGV 1 id   2 message
-- The one way out of a terminal state, and only out of 'failed'. A message without a record goes
-- back too: whoever reads it makes one. Returns the state the job is in now ('' : no such letter).
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return '' end
local state, message = redis.call('HGET', KEYS[3], 'state') or 'queued', ARGV[2]
if state == 'failed' then
  state = 'queued'
  redis.call('HSET', KEYS[3], 'state', state, 'step', '0', 'deliveries', '0', 'retries', '0')
  redis.call('HDEL', KEYS[3], 'error', 'started_at', 'finished_at', 'cancel_requested')
  redis.call('PERSIST', KEYS[3])
elseif redis.call('EXISTS', KEYS[3]) == 1 then
  return state
else
  message = string.gsub(message, ',"recorded":true', '', 1)
end
redis.call('HDEL', KEYS[4], redis.sha1hex(ARGV[2]))
put_back(KEYS[5], message)
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return state
