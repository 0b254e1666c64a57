-- Delete the record of a job that has ended, and the entries of its images, which need not expire any more.
-- KEYS 1 job record (hash)   2… expiring images of each known store (sorted sets: job id by due time)
-- ARGV 1 job id
-- Returns the state it had ('' if there is no record). In any other state nothing is changed.
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state == 'succeeded' or state == 'failed' or state == 'cancelled' then
  redis.call('DEL', KEYS[1])
  publish_change(KEYS[1], 'deleted')
  for store = 2, #KEYS do redis.call('ZREM', KEYS[store], ARGV[1]) end
end
return state
