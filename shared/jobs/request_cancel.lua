-- Ask a running job to stop. (A queued one is moved to cancelled at once, by move.lua.)
-- KEYS 1 job record
-- Returns the state ('' if there is no record).
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state == 'running' then redis.call('HSET', KEYS[1], 'cancel_requested', '1') end
return state
