-- Delete the record of a job that has ended.
-- KEYS 1 job record (hash)
-- Returns the state it had ('' if there is no record). In any other state nothing is changed.
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state == 'succeeded' or state == 'failed' or state == 'cancelled' then redis.call('DEL', KEYS[1]) end
return state
