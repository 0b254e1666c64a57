-- Definitions for the scripts that change the outbox. They come after queue.lua, use no KEYS and no ARGV, and return
-- nothing. Their parameters `outbox` and `messages` are the keys of the due times (sorted set: id by Unix seconds)
-- and of the messages (hash: id to JSON, as json.dumps of Python writes it).
-- Two fields of a message are written here. `since` says from when on it has waited for a slow receiver, or for another
-- reason without a try, Unix seconds. The next try deletes it. `occurrence` tells
-- events of one id apart: it has the time at which the job was submitted, and how often the job had ended before. A job
-- that is redriven, or deleted and submitted again, gets another one. An event that happens again because a failover
-- lost it gets the same. Release 0.1.0 drops both fields when it repeats a try.
local OTHER = '+'  -- no job has it in its id

local function given_up_of(outbox) return outbox .. ':given-up' end

-- Return which occurrence an event of a record is, nil if its record is damaged.
local function occurrence_of(submitted_at, ends)
  local at = string.match(submitted_at or '', '^[%d.]+$')
  return at and at .. '/' .. (tonumber(ends or '') or 0)
end

-- Return a message with one more field, whose value is JSON.
local function with_field(message, name, value)
  return '{"' .. name .. '": ' .. value .. ', ' .. string.sub(message, 2)
end

-- Return the body and the occurrence of a message, each nil if it is missing or no text.
local function decode_message(message)
  local readable, fields = pcall(cjson.decode, message)
  if not readable or type(fields) ~= 'table' then return {} end
  local function text(name) return type(fields[name]) == 'string' and fields[name] or nil end
  return {body = text('body'), occurrence = text('occurrence')}
end

-- Return whether two messages with one id report the same event, or the one that is kept is damaged.
local function is_same_event(kept, message)
  if kept == message then return true end
  local a, b = decode_message(kept), decode_message(message)
  if a.occurrence and b.occurrence then return a.occurrence == b.occurrence end
  return a.body == nil or a.body == b.body
end

-- Return the id that a message gets when another event takes its own.
local function other_id(id, message)
  local fields = decode_message(message)
  local which = fields.occurrence or redis.sha1hex(tostring(fields.body))
  return string.match(id, '^[^' .. OTHER .. ']*') .. OTHER .. which
end

-- Return a message with another id, nil if it does not have the first one.
local function with_id(message, id, other)
  local first, last = string.find(message, '"id": "' .. id .. '"', 1, true)
  return first and string.sub(message, 1, first) .. 'id": "' .. other .. string.sub(message, last)
end

-- Give a message that waits, or was given up, another id, so that another event can have its own.
local function move_aside(outbox, messages, id, message)
  local other = other_id(id, message)
  local moved = with_id(message, id, other)
  for _, key in ipairs({outbox, given_up_of(outbox)}) do
    local score = moved and redis.pcall('ZSCORE', key, id)
    if type(score) == 'string' then
      redis.call('ZREM', key, id)
      redis.call('ZADD', key, score, other)
      redis.call('HSET', messages, other, moved)
    end
  end
end

-- Write a message and when it is due, whatever the keys hold.
local function put_message(outbox, messages, id, message, due)
  if type(redis.pcall('ZADD', outbox, due, id)) ~= 'number' then
    set_aside_unless('zset', outbox)
    redis.call('ZADD', outbox, due, id)
  end
  if type(redis.pcall('HSET', messages, id, message)) ~= 'number' then
    set_aside_unless('hash', messages)
    redis.call('HSET', messages, id, message)
  end
end

-- Add the callback of an event, due now. An earlier message of the same event is replaced. One of another event that
-- has the same id is kept under another.
local function add_callback(outbox, messages, id, message, now, occurrence)
  local added = occurrence and with_field(message, 'occurrence', '"' .. occurrence .. '"') or message
  local kept = redis.pcall('HGET', messages, id)
  if type(kept) == 'string' then
    if not is_same_event(kept, added) then move_aside(outbox, messages, id, kept) end
    redis.pcall('ZREM', given_up_of(outbox), id)
  end
  put_message(outbox, messages, id, added, now)
end

-- Return for how many seconds a message has waited without a try, nil if it has not.
local function age_of(message, now)
  local since = tonumber(string.match(message, '"since": ?([%d.]+)') or '')
  return since and now - since
end

-- Return the id under which the event of a claimed message is kept now, nil if it is not kept any more.
local function kept_id(messages, id, message)
  local kept = redis.call('HGET', messages, id)
  if kept and is_same_event(kept, message) then return id end
  local other = other_id(id, message)
  return redis.call('HEXISTS', messages, other) == 1 and other or nil
end

-- Stop sending a message, but keep it among the latest `kept` for an operator to read and replay.
local function give_up_message(outbox, messages, id, kept)
  local given_up = given_up_of(outbox)
  redis.call('ZREM', outbox, id)
  redis.call('ZADD', given_up, redis.call('TIME')[1], id)
  for _, oldest in ipairs(redis.call('ZRANGE', given_up, 0, -1 - kept)) do
    redis.call('ZREM', given_up, oldest)
    redis.call('HDEL', messages, oldest)
  end
end
