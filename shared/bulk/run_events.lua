-- Definitions for the scripts that change a run or search the runs: they put its events into the outbox. They come after
-- `outbox.lua`, use no KEYS and no ARGV, and return nothing. Their parameters are the keys of the run's hash, of the outbox and of
-- its messages.
-- The run's hash says what was reported. So whoever changes the run or searches the runs next reports what is still missing,
-- also what happened in a worker of an older release, which reports nothing. Its fields, all of them only if the run has a
-- receiver:
--   callback        fields of its messages: `job_id`, `url` and perhaps `tenant`, as json.dumps of Python writes them
--   callback_data   what every event says of the run, in the same form
--   reported        the state that was reported last: 'running' if the run has started, or how it ended; '' before that
--   reported_tenths how many tenths of its images were reported
--   reported_events, reported_ends   how many events, and how many ends, were reported so far
--   idle_counts, idle_since          what a search has counted, and when a search found these counts first, Unix seconds
--   reported_idle   the `idle_since` that was reported last
--   summing_at      when somebody was last seen to write the summary, Unix seconds
local RUN_ENDED = {succeeded = true, failed = true, cancelled = true}
local SHARDS_IN = {'queued', 'running', 'succeeded', 'failed', 'cancelled'}
local FIELDS = {
  'callback', 'callback_data', 'state', 'started_at', 'resumed_at', 'finished_at', 'samples', 'images', 'failed_images',
  'shards', 'reported', 'reported_tenths', 'reported_events', 'reported_ends', 'idle_counts', 'idle_since',
  'reported_idle', 'shards:queued', 'shards:running', 'shards:succeeded', 'shards:failed', 'shards:cancelled'}

-- Return the fields of a run, nil if it has no receiver, or if its key holds something else.
local function read_run(run)
  if type(redis.pcall('HGET', run, 'callback')) ~= 'string' then return nil end
  local fields = {}
  for i, value in ipairs(redis.call('HMGET', run, unpack(FIELDS))) do fields[FIELDS[i]] = value or '' end
  return fields
end

-- Return a count that is stored as text; 0 if it is missing, damaged, or negative after Redis has lost a record.
local function count_of(text) return math.max(0, tonumber(string.match(text, '^-?%d+$') or '') or 0) end

local function days_of(year, month)
  local is_leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
  local months = {31, is_leap and 29 or 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
  return months[month]
end

-- Return Unix seconds and microseconds as a time of RFC 3339, in UTC.
local function rfc3339(seconds, microseconds)
  local day, rest = math.floor(seconds / 86400), seconds % 86400
  local year, month = 1970, 1
  while day >= days_of(year, month) do
    day = day - days_of(year, month)
    month = month + 1
    if month > 12 then year, month = year + 1, 1 end
  end
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06d+00:00', year, month, day + 1,
    math.floor(rest / 3600), math.floor(rest % 3600 / 60), rest % 60, microseconds)
end

-- Return how many tenths of the images of a run are made or have failed. Only an ended run has all ten.
local function tenths_of(fields)
  local samples = count_of(fields.samples)
  local done = count_of(fields.images) + count_of(fields.failed_images)
  local tenths = samples == 0 and 10 or math.min(10, math.floor(10 * done / samples))
  return RUN_ENDED[fields.state] and tenths or math.min(9, tenths)
end

-- Return what an event says of a run now, beside `callback_data`, as JSON without braces.
local function counts_of(fields, number, tenths, idle_s)
  local shards = {}
  for _, state in ipairs(SHARDS_IN) do
    shards[#shards + 1] = string.format('"%s": %.0f', state, count_of(fields['shards:' .. state]))
  end
  local text = string.format(
    '"state": "%s", "sequence": %.0f, "progress": %.0f, "samples": %.0f, "images": %.0f, "failed_images": %.0f, ' ..
    '"shards": %.0f, "shards_by_state": {%s}', fields.state, number, 10 * tenths, count_of(fields.samples),
    count_of(fields.images), count_of(fields.failed_images), count_of(fields.shards), table.concat(shards, ', '))
  return idle_s and string.format('%s, "idle_s": %.0f', text, idle_s) or text
end

local function decoded_table(text)
  local is_readable, decoded = pcall(cjson.decode, text)
  return is_readable and type(decoded) == 'table' and decoded or {}
end

-- Put an event of a run into the outbox. `suffix` makes its id: that of an event which happens again is the same. It is
-- left out if what the run's hash says of the receiver is damaged.
local function report_event(run, fields, outbox, messages, event, suffix, tenths, idle_s)
  local name, data = decoded_table(fields.callback).job_id, decoded_table(fields.callback_data)
  if type(name) ~= 'string' or type(data.id) ~= 'string' then return end
  local clock = redis.call('TIME')
  local number = count_of(fields.reported_events) + 1
  local counts = counts_of(fields, number, tenths, idle_s)
  local body = string.format('{"type": "run.%s", "timestamp": "%s", "data": %s, %s}}', event,
    rfc3339(clock[1], clock[2]), string.sub(fields.callback_data, 1, -2), counts)
  local id = name .. '.' .. suffix
  local message = string.format('{"id": "%s", "body": %s, "attempts": 0, %s', id, cjson.encode(body),
    string.sub(fields.callback, 2))
  local now = clock[1] .. '.' .. string.format('%06d', clock[2])
  add_callback(outbox, messages, id, message, now, occurrence_of(fields.started_at, fields.reported_ends))
  redis.call('HSET', run, 'reported_events', number)
end

-- Report what has happened to a run since the last event, and was not reported. The end of a run that succeeded is reported
-- only if `is_summed_up`: its receiver then finds the summary in the destination.
local function report_run(run, outbox, messages, is_summed_up)
  local fields = read_run(run)
  if not fields then return end
  local state, reported, tenths = fields.state, fields.reported, tenths_of(fields)
  if state == 'running' and reported == '' and count_of(fields['shards:running']) > 0 then
    redis.call('HSET', run, 'reported', state, 'reported_tenths', tenths)
    report_event(run, fields, outbox, messages, 'started', 'started', tenths)
  elseif state == 'running' and reported == 'running' and tenths > count_of(fields.reported_tenths) then
    redis.call('HSET', run, 'reported_tenths', tenths)
    report_event(run, fields, outbox, messages, 'progress', 'progress.' .. 10 * tenths, tenths)
  elseif RUN_ENDED[state] and reported ~= state and (is_summed_up or state ~= 'succeeded') then
    redis.call('HSET', run, 'reported', state, 'reported_ends', count_of(fields.reported_ends) + 1)
    report_event(run, fields, outbox, messages, 'ended', 'ended', math.max(tenths, count_of(fields.reported_tenths)))
  end
end

-- Let a run have a receiver, which gets the events of the run from now on. Another one than before gets them from the start.
local function set_receiver(run, callback, data)
  if redis.call('HGET', run, 'callback') ~= callback then
    redis.call('HSET', run, 'reported', '', 'reported_tenths', 0)
  end
  redis.call('HSET', run, 'callback', callback, 'callback_data', data)
end

-- Let a run that was reported as ended start anew, because one of its shards has changed since. Without this a run that is
-- resumed and has nothing left to do would be reported as ended twice.
local function reopen_report(run)
  if RUN_ENDED[redis.call('HGET', run, 'reported') or ''] then
    redis.call('HSET', run, 'reported', '', 'reported_tenths', 0)
  end
end

-- Report once that no image of a running run was made, and no shard ended, for `limit_s`.
local function report_idle_run(run, outbox, messages, now, limit_s)
  local fields = read_run(run)
  if not fields or fields.state ~= 'running' then return end
  local counts = string.format('%.0f/%.0f', count_of(fields.images) + count_of(fields.failed_images),
    count_of(fields['shards:succeeded']) + count_of(fields['shards:failed']))
  if counts ~= fields.idle_counts then
    redis.call('HSET', run, 'idle_counts', counts, 'idle_since', now)
    return
  end
  local since = math.max(count_of(fields.idle_since), count_of(fields.resumed_at))
  if now - since >= limit_s and count_of(fields.reported_idle) ~= since then
    redis.call('HSET', run, 'reported_idle', since)
    local tenths = math.max(tenths_of(fields), count_of(fields.reported_tenths))
    report_event(run, fields, outbox, messages, 'stalled', 'stalled.' .. string.format('%.0f', since), tenths, now - since)
  end
end
