-- Send the message of a dead letter through the fleet once more, with new counts. This is the only
-- transition out of a terminal state, and only out of 'failed'. A message without a record is sent
-- too: the worker that claims it creates the record.
-- KEYS 1 dead letters (sorted set)   2 their contents (hash)   3 record of the letter's job (hash)
--      4 delivery counts (hash: sha1 of message to count)   5 queue list that the message came from
-- ARGV 1 id   2 message   3 request that the record has ('' for none)
-- Returns the state of the job now ('' if there is no such letter, 'other' if the record has another request now).
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return '' end
if (redis.call('HGET', KEYS[3], 'request') or '') ~= ARGV[3] then return 'other' end
local state, message = redis.call('HGET', KEYS[3], 'state') or 'queued', ARGV[2]
if state == 'failed' then
  state = 'queued'
  redis.call('HSET', KEYS[3], 'state', state, 'step', '0', 'deliveries', '0', 'retries', '0')
  redis.call('HDEL', KEYS[3], 'error', 'started_at', 'finished_at', 'cancel_requested', 'failures')
  redis.call('PERSIST', KEYS[3])
  publish_change(KEYS[3], state)
elseif redis.call('EXISTS', KEYS[3]) == 1 then
  return state
else
  message = string.gsub(message, ',"recorded":true', '', 1)
end
redis.call('HDEL', KEYS[4], redis.sha1hex(ARGV[2]))
requeue_message(KEYS[5], message)
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return state
