-- Search for stalled runs, and give one of them to the caller for recovery. Report to receivers of runs what nobody else has
-- reported.
-- KEYS 1 runs (sorted set)   2 search throttle (string that expires when the next search is due)
--      3 stalled runs that the last search found and that no caller has been given yet (set)
--      4 outbox (sorted set)   5 its messages (hash)
-- ARGV 1 prefix of the runs' hashes
--      2 seconds without a transition before a run counts as stalled, and between two searches
--      3 seconds without an image before a run is reported as stalled, and for which the end of a run
--        that has succeeded waits for its summary if nobody writes it
-- Returns the id of a run, or nothing. A run that stays stalled is given out again when it has been
-- stalled for twice as long, because the recovery of a run with many shards takes long, and most
-- stalled runs only wait for their turn. After MAX_PAUSE_S it is given out again in any case, so
-- what it loses meanwhile is found by then.
-- A caller may die with a run, for example because its plan does not fit the memory. The run's hash counts the
-- recoveries since the last change that have not ended. From the second on each makes a pause of
-- `stalled seconds` eight times as long, up to a day, so in the end such a run costs a worker a day.
local MAX_PAUSE_S, DEATHS_MAX_PAUSE_S, SUMMARY_MAX_S = 600, 86400, 86400
local now, stalled_s = tonumber(redis.call('TIME')[1]), tonumber(ARGV[2])

local function time_of(text) return tonumber(string.match(text or '', '^%d+$')) or 0 end

local function is_stalled(run)
  local key = ARGV[1] .. run
  local fields = read_derived('HMGET', key, 'state', 'moved_at', 'looked_at', 'unfinished_recoveries')
  if fields.err then return false end  -- anybody may have written such an id and such a key
  local state, moved_at, looked_at, unfinished = unpack(fields)
  if state ~= 'running' then return false end
  if not moved_at then  -- the run was started by a version that did not store it
    redis.call('HSET', key, 'moved_at', now)
    return false
  end
  moved_at, looked_at = time_of(moved_at), time_of(looked_at)
  if looked_at < moved_at then
    redis.call('HDEL', key, 'unfinished_recoveries')
    return now - moved_at >= stalled_s
  end
  local pause = math.max(stalled_s, math.min(looked_at - moved_at, MAX_PAUSE_S))
  local deaths = time_of(unfinished)
  if deaths > 1 then
    pause = math.max(pause, math.min(stalled_s * 8 ^ (deaths - 1), DEATHS_MAX_PAUSE_S))
  end
  return now - looked_at >= pause
end

-- Return whether nobody writes the summary of a run that has succeeded, or the writer hangs. Who writes it reports the end;
-- a worker that did may be dead, or of an older release.
local function is_left_without_summary(key)
  local finished_at, summing_at = time_of(redis.call('HGET', key, 'finished_at')), time_of(redis.call('HGET', key, 'summing_at'))
  local limit = tonumber(ARGV[3])
  return now - math.max(finished_at, summing_at) >= limit or now - finished_at >= math.max(SUMMARY_MAX_S, limit)
end

local function report(run)
  local key = ARGV[1] .. run
  if type(read_derived('HGET', key, 'callback')) ~= 'string' then return end
  report_run(key, KEYS[4], KEYS[5], is_left_without_summary(key))
  report_idle_run(key, KEYS[4], KEYS[5], now, tonumber(ARGV[3]))
end

-- A search reads every run: 10,000 take 20 ms, and most of them have ended. So the fleet makes one
-- search per interval, not one per worker.
set_aside_unless('zset', KEYS[1])
set_aside_unless('set', KEYS[3])
if redis.call('EXISTS', KEYS[1]) == 0 then return end
if redis.call('SET', KEYS[2], now, 'NX', 'PX', math.ceil(1000 * stalled_s)) then
  redis.call('DEL', KEYS[3])
  for _, run in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    report(run)
    if is_stalled(run) then redis.call('SADD', KEYS[3], run) end
  end
end
local run = redis.call('SPOP', KEYS[3])
while run and not is_stalled(run) do run = redis.call('SPOP', KEYS[3]) end
if run then
  redis.call('HSET', ARGV[1] .. run, 'looked_at', now)
  redis.call('HINCRBY', ARGV[1] .. run, 'unfinished_recoveries', 1)
end
return run
