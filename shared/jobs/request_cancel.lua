-- Ask the attempt at a running job to stop. (transition.lua cancels a queued job at once.)
-- KEYS 1 job record (hash)
-- ARGV 1 job id, which is not used
-- Returns the job's state ('' if there is no record).
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state == 'running' then
  redis.call('HSET', KEYS[1], 'cancel_requested', '1')
  publish_change(KEYS[1], state)
end
return state
