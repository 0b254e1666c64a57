-- Finish a running run: when all its shards have ended, or as cancelled on request.
-- KEYS 1 run (hash)   2 its shards (hash)   3 its workers (hash)   4 its failure reasons (hash)
--      5 the errors of its shards (hash)   6 outbox (sorted set)   7 its messages (hash)
-- ARGV 1 '1' to cancel the run   2 seconds to keep the records of an ended run
-- Returns the state of the run now, '' if there is no such run.
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state ~= 'running' then return state end
local function count(field) return tonumber(redis.call('HGET', KEYS[1], field)) or 0 end
local succeeded, failed = count('shards:succeeded'), count('shards:failed')
if succeeded + failed == count('shards') then
  state = failed > 0 and 'failed' or 'succeeded'
elseif ARGV[1] == '1' then
  state = 'cancelled'
else
  return state
end
for i = 1, 5 do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
redis.call('HSET', KEYS[1], 'state', state, 'finished_at', redis.call('TIME')[1])
report_run(KEYS[1], KEYS[6], KEYS[7], false)
return state
