-- Create the record of a run, or set an ended run to `running` again. No shard is sent.
-- KEYS 1 run (hash)   2 its shards   3 its workers   4 its failure reasons   5 the errors of its shards (hashes)
--      6 runs (sorted set: id by start time)   7 outbox (sorted set)   8 its messages (hash)
-- ARGV 1 the run's id   2 max_failures   3 priority
--      4 `callback` of the run ('': as it is; see run_events.lua)   5 its `callback_data`
--      6.. field that never changes, value, field, value ...
-- Returns nothing.
report_run(KEYS[1], KEYS[7], KEYS[8], true)  -- its end, if that was not reported yet
local now = redis.call('TIME')[1]
local state = redis.call('HGET', KEYS[1], 'state')
for i = 6, #ARGV, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSETNX', KEYS[1], 'started_at', now)
redis.call('HSET', KEYS[1], 'state', 'running', 'max_failures', ARGV[2], 'priority', ARGV[3], 'moved_at', now)
redis.call('HDEL', KEYS[1], 'finished_at')
if state and state ~= 'running' then
  redis.call('HSET', KEYS[1], 'resumed_at', now)
  redis.call('DEL', KEYS[3])  -- rates leave out the pause
end
for i = 1, 5 do redis.call('PERSIST', KEYS[i]) end
redis.call('ZADD', KEYS[6], 'NX', now, ARGV[1])
if ARGV[4] ~= '' then set_receiver(KEYS[1], ARGV[4], ARGV[5]) end
report_run(KEYS[1], KEYS[7], KEYS[8], false)
