-- End a run that is under way: as cancelled, or if all its shards have ended.
-- KEYS 1 run (hash)   2 its shards (hash)   3 its workers (hash)   4 its reasons (hash)
-- ARGV 1 '1' to cancel it   2 seconds to keep an ended run
-- Returns its state now, '' if there is no such run.
local run = redis.call('HGET', KEYS[1], 'state') or ''
if run ~= 'running' then return run end
local function count(field) return tonumber(redis.call('HGET', KEYS[1], field) or '0') end
local succeeded, lost = count('shards:succeeded'), count('shards:failed')
if succeeded + lost == count('shards') then
  run = lost > 0 and 'failed' or 'succeeded'
elseif ARGV[1] == '1' then
  run = 'cancelled'
else
  return run
end
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
redis.call('HSET', KEYS[1], 'state', run, 'finished_at', redis.call('TIME')[1])
return run
