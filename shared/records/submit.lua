-- Accept a job: its record and its queue message appear together, once per id.
-- KEYS 1 job record (hash)   2 queue (list)
-- ARGV 1 request JSON        2 queue message
-- Returns {1} when accepted now, {0, request JSON} when the id was accepted before.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {0, redis.call('HGET', KEYS[1], 'request')}
end
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'state', 'queued', 'request', ARGV[1],
  'submitted_at', now[1] .. '.' .. string.format('%06d', now[2]))
redis.call('LPUSH', KEYS[2], ARGV[2])
return {1}
